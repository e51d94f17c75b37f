"""`longfit sft`: takes the flags of `swift sft`, says what became of each, plans, and trains when it fits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.cli.import_ import read_source, say_findings
from app.cli.run_arguments import add_runs_dir
from app.cli.train import add_launch_arguments, train_planned
from app.services.importing.command import read_arguments
from app.services.importing.finding import refuse_impossible
from app.services.importing.imported import import_pasted
from app.services.importing.paste import read_paste
from app.services.importing.pasted import Pasted, Setting
from app.services.launch import plan_for_launch
from app.services.presets import parse_override
from planner.errors import ConfigError

_VARIABLES = ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES", "USE_HF", "CELOSS_PARALLEL_SIZE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False  # `--system` is swift's, not an abbreviation of ours
    parser.set_defaults(takes_rest=True)
    parser.usage = "longfit sft [longfit's options] --model MODEL --dataset DATA [--max_length N] [any swift sft flag]"
    parser.epilog = (
        "NPROC_PER_NODE and CUDA_VISIBLE_DEVICES are honoured. A swift YAML may stand in front of the flags."
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a key of the preset that the flags become (repeatable)")  # fmt: skip
    parser.add_argument("--gpu", metavar="GPUS", help="hardware such as cpu, here, 2xhere")
    parser.add_argument("--strict", nargs="?", const="", metavar="true|false",
                        help="stop at what cannot be as written; with a value it is swift's own flag")  # fmt: skip
    add_runs_dir(parser)
    add_launch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """As `longfit train`; 2 also when a flag is impossible under --strict."""
    flags, is_strict = list(args.rest), args.strict is not None
    if args.strict and args.strict.lower() in ("true", "false"):
        flags, is_strict = [*flags, "--strict", args.strict], False
    elif args.strict:  # a file that stood behind it
        flags = [args.strict, *flags]
    if not flags:
        raise ConfigError("No flag was given.", fix="longfit sft --model MODEL --dataset FILE --max_length 8192")
    imported = import_pasted(with_files(read_arguments(flags, environment_settings(os.environ))))
    say_findings(imported)
    if is_strict:
        refuse_impossible(imported.findings)
    if imported.preset is None:
        raise ConfigError("There is nothing to train.", why=imported.findings[0].what, fix=imported.findings[0].fix)
    overrides = dict(parse_override(text) for text in args.overrides)
    planned = plan_for_launch(imported.preset, overrides, gpu=args.gpu)
    wanted = Path(imported.runs_dir).expanduser() if imported.runs_dir else None
    return train_planned(planned, args, runs_root=args.runs_dir or wanted)


def environment_settings(variables: Mapping[str, str]) -> tuple[Setting, ...]:
    """The variables that swift itself would read."""
    return tuple(
        Setting(name=name, value=variables[name], written=f"{name}={variables[name]}")
        for name in _VARIABLES
        if name in variables
    )


def with_files(pasted: Pasted) -> Pasted:
    """``swift sft run.yaml --max_length 8192``: the file's keys, and the flags over them. Raises: as read_source."""
    named = [*pasted.files, *(str(setting.value) for setting in pasted.settings if setting.name == "config")]
    documents = [read_paste(read_source([name])) for name in named]
    for name, document in zip(named, documents, strict=True):
        if document.source != "document":
            raise ConfigError(f"{name} is not a configuration.", why=document.problem)
    given: Sequence[Setting] = [setting for setting in pasted.settings if setting.name != "config"]
    return replace(
        pasted, files=(),
        settings=(*(setting for document in documents for setting in document.settings), *given),
        environment=(*(setting for document in documents for setting in document.environment), *pasted.environment),
    )  # fmt: skip
