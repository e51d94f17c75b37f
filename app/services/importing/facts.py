"""What the importer must know beside the text: what this longfit can do, and what this machine has.

One object, so that import_text is a pure function of (text, facts) and tests can say both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from app.services.hardware import detect_gpus, environment_for, parse_cluster
from app.services.models import find_model
from app.services.planning import plan_preset
from app.services.preset_keys import optimization_keys
from core.optimizations import REGISTRY
from planner.catalog.models import nearest_models
from planner.errors import ConfigError
from planner.optimization import Registry
from planner.types import ClusterSpec, Environment, Issue, ModelSpec, Preset

_CARD = "H200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    registry: Registry
    model: Callable[[str], ModelSpec | None]  # None: its shape is not known here
    near_models: Callable[[str], tuple[str, ...]]
    is_file: Callable[[str], bool]
    reads_hubs: bool  # ms::org/set and hf::org/set as data
    machine: Callable[[], Environment]  # packages and GPU, asked only when the text names a kernel
    objections: Callable[[Preset], Sequence[Issue]]  # of the planner, on cards that lack nothing

    def offers(self, name: str) -> bool:
        """Can it be trained with? An entry that is only planned so far cannot."""
        return name in self.registry and self.registry[name].available

    def knobs(self, name: str) -> Mapping[str, object]:
        """Knob -> default; empty for what the registry does not have."""
        return (
            {key.name: key.default for key in optimization_keys(name, self.registry)} if name in self.registry else {}
        )


def facts_here() -> Facts:
    return Facts(
        registry=REGISTRY, model=_model, near_models=nearest_models, is_file=_is_file,
        reads_hubs=find_spec("core.data.hub") is not None, machine=_machine, objections=_objections,
    )  # fmt: skip


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long for a name, a null byte, an unknown ~user
        return False


def _model(name: str) -> ModelSpec | None:
    try:
        return find_model(name)[0]
    except ConfigError:
        return None


def _machine() -> Environment:
    gpus = detect_gpus()
    if not gpus:
        return Environment(source="detected", packages={}, compute_capability=None)
    return environment_for(ClusterSpec(gpu=gpus[0], num_gpus_per_node=1, host_bytes_per_node=0, source="detected"))


def _objections(preset: Preset) -> Sequence[Issue]:
    """What the planner says whatever the card: planned for large imagined ones with every package."""
    count, nodes = int(preset.hardware.get("count", 1)), int(preset.hardware.get("nodes", 1))
    try:
        return plan_preset(preset, cluster=parse_cluster(f"{count}x{_CARD}", num_nodes=nodes)).plan.issues
    except ConfigError as error:
        return (Issue(code="preset", severity="error", what=error.what, why=error.why, fix=error.fix),)
