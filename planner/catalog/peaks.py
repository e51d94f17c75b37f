"""Dense 16-bit tensor peaks as vendors print them: what an MFU is a share of. Used by planner/catalog/gpus.py.

TFLOP/s without sparsity, sums in float32 where the vendor tells them apart (GeForce halves them). Sources, as of
2026-11-29: NVIDIA datasheets of T4, V100, A10, A30, A40, L4, L40S, RTX A5000, RTX A6000, RTX 6000 Ada, A100, H100, H200
and DGX B200; GeForce cards from the Turing (WP-09183), GA102 (v2.1), Ada (v2.1) and RTX Blackwell (v1.1) architecture
papers; AMD datasheet of MI300X.
"""

from __future__ import annotations

from collections.abc import Mapping

PEAK_TFLOPS: Mapping[str, float] = {
    "T4": 65,
    "V100-16G": 125,
    "V100-32G": 125,
    "RTX-2080-Ti": 53.8,
    "RTX-3060-12G": 25.5,
    "RTX-3070": 40.6,
    "RTX-3080-10G": 59.5,
    "RTX-3090": 71.2,
    "RTX-3090-Ti": 80,
    "RTX-4060": 30.2,
    "RTX-4060-Ti-16G": 44.1,
    "RTX-4070": 58.3,
    "RTX-4070-Ti-SUPER": 88.2,
    "RTX-4080": 97.5,
    "RTX-4090": 165.2,
    "RTX-5060-Ti-16G": 47.4,
    "RTX-5070": 61.7,
    "RTX-5070-Ti": 87.9,
    "RTX-5080": 112.6,
    "RTX-5090": 209.5,
    "RTX-A5000": 111.1,
    "RTX-A6000": 154.8,
    "RTX-6000-Ada": 364.2,
    "A10": 125,
    "A30": 165,
    "A40": 149.7,
    "L4": 121,
    "L40S": 362,
    "A100-40G": 312,
    "A100-80G": 312,
    "H100-80G": 989,
    "H200": 989,
    "B200": 2250,
    "MI300X": 1307,
}
