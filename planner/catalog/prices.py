"""What an hour of a GPU costs, for the goal `cheapest`: list prices of one seller, so that they compare.

Runpod, always-on ("active") workers, dollars a second times 3600, from docs.runpod.io/serverless/pricing as stored on
2026-11-29; sellers differ by a factor of two and more. A GPU that this list lacks has no price and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

DOLLARS_PER_HOUR: Mapping[str, float] = {
    "RTX-3090": 0.47,
    "RTX-A5000": 0.47,
    "L4": 0.47,
    "RTX-4090": 0.76,
    "RTX-A6000": 0.86,
    "A40": 0.86,
    "RTX-6000-Ada": 1.33,
    "L40S": 1.33,
    "A100-80G": 2.16,
    "H100-80G": 3.35,
    "H200": 4.46,
    "B200": 6.84,
}
