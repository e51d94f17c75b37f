"""`longfit models`: the catalog of models that can be planned without their files, and where files lie here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.services.models import local_folder
from app.views.format import format_count, format_short_count
from planner.catalog.models import MODELS
from planner.model_checks import planned_only_models
from planner.model_spec import model_spec_from_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    rows = [_row(name) for name in MODELS]
    if args.json:
        json.dump({"schema": 1, "models": rows}, sys.stdout, indent=2)
        print()
        return 0
    print(f"{'name':<40} {'parameters':>10} {'native length':>13} {'layers':>6} {'heads q/kv':>10}  weights")
    for row in rows:
        heads = f"{row['num_attention_heads']}/{row['num_kv_heads']}"
        size, length = format_short_count(row["num_parameters"]), format_count(row["native_length"])
        where = "here" if row["folder"] else "to download"
        where = where if row["trainable"] else "planned only"
        print(f"{row['name']:<40} {size:>10} {length:>13} {row['num_layers']:>6} {heads:>10}  {where}")
    print("Any folder with a config.json of these families can be planned too: model: path/to/folder", file=sys.stderr)
    return 0


def _row(name: str) -> dict[str, Any]:
    spec = model_spec_from_config(name, MODELS[name])
    folder = local_folder(name)
    return {
        "name": name,
        "family": spec.family,
        "num_parameters": spec.num_parameters,
        "num_active_parameters": spec.num_active_parameters,
        "trainable": not planned_only_models(spec),
        "native_length": spec.max_position_embeddings,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_kv_heads": spec.num_kv_heads,
        "vocab_size": spec.vocab_size,
        "folder": None if folder is None else str(folder),
    }
