"""YAML as people mean it: the one loader and dumper for presets, overrides and run files.

PyYAML follows YAML 1.1, where ``1e-5`` is text and ``010`` is eight. Here a float needs no dot (YAML 1.2), and a number
with a leading zero stays text, so that the key's type check names it instead of training with another seed.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from planner.errors import ConfigError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    pass


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would read as something else than text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int")]
    for first, rules in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|nan)$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def load_yaml(text: str, *, where: str) -> Any:
    """Parse one document. Raises: ConfigError with the line when it is no YAML or holds a key twice."""
    try:
        _refuse_duplicate_keys(yaml.compose(text, Loader=_Loader), where)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{where}{line}: this is not valid YAML.", why=f"{problem}.", fix="Mend that line.") from None


def dump_yaml(value: Any) -> str:
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    )


def _refuse_duplicate_keys(node: Any, where: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise ConfigError(
                    f"{where}, line {line}: the key {key.value!r} is given twice.",
                    why=f"It stands in line {seen[key.value]} already, and only one of the two could count.",
                    fix="Delete one of them.",
                )
            seen[key.value] = line
            _refuse_duplicate_keys(value, where)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicate_keys(item, where)
