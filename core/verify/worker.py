"""Dry runs in a process of their own: `python -P -m core.verify.worker`. Started by app/services/verify.py.

Input: {"cases": [{"config": run.yaml as text, "model_config": {...}, "kernel": "torch"}, ...]}, where the kernel is the
one that attends, as planner/attention_kernels.py names it. Output, one line a case, in their order:
{"by_instant": {...}} or {"error": {"what", "why", "fix"}} for what a run would refuse.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from core.run.config_file import config_from_yaml
from planner.errors import LongfitError


def main() -> int:
    warnings.simplefilter("ignore")  # of libraries, about fake tensors; the answers go to stdout
    logging.disable(logging.WARNING)
    for case in json.load(sys.stdin)["cases"]:
        print(json.dumps(answer(case)), flush=True)  # noqa: T201
    return 0


def answer(case: Mapping[str, Any]) -> dict[str, Any]:
    from core.verify.dry_run import dry_run

    try:
        found = dry_run(config_from_yaml(case["config"]), case["model_config"], kernel=case["kernel"])
    except LongfitError as error:
        return {"error": {"what": error.what, "why": error.why, "fix": error.fix}}
    return {"by_instant": dict(found.by_instant)}


if __name__ == "__main__":
    sys.exit(main())
