"""What longfit's own metadata requires, and what of it is installed. Used by doctor and verbs that need an extra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from planner.errors import EnvironmentProblem

DISTRIBUTION = "longfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementStatus:
    """``installed`` is None when the package is not there; ``wanted`` is a specifier such as ``<6.27,>=6.20``."""

    package: str
    wanted: str
    installed: str | None
    is_satisfied: bool

    @property
    def words(self) -> str:
        found = f"found {self.installed}" if self.installed else "not installed"
        return f"{self.package}{self.wanted}: {found}"


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def extra_names() -> tuple[str, ...]:
    """Extras that longfit offers."""
    return _declared()[1]


def requirements(
    extra: str = "", *, find_version: Callable[[str], str | None] = installed_version
) -> tuple[RequirementStatus, ...]:
    """What ``extra`` adds, or what longfit needs in any case."""
    from packaging.requirements import Requirement

    found: list[RequirementStatus] = []
    for requirement in map(Requirement, _declared()[0]):
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not (always if not extra else not always and requirement.marker.evaluate({"extra": extra})):
            continue
        if requirement.name == DISTRIBUTION:  # an extra made of extras
            for inner in sorted(requirement.extras):
                found += requirements(inner, find_version=find_version)
            continue
        version = find_version(requirement.name)
        found.append(
            RequirementStatus(
                package=requirement.name,
                wanted=str(requirement.specifier),
                installed=version,
                is_satisfied=version is not None and requirement.specifier.contains(version, prereleases=True),
            )
        )
    return tuple(found)


def _declared() -> tuple[list[str], tuple[str, ...]]:
    """(requirement lines, names of extras): from the installed metadata, else from the source tree's pyproject.toml."""
    try:
        offered = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra")
        return metadata.requires(DISTRIBUTION) or [], tuple(offered or ())
    except metadata.PackageNotFoundError:
        path = Path(__file__).resolve().parents[2] / "pyproject.toml"
        if not path.is_file():
            return [], ()
    import tomllib

    project = tomllib.loads(path.read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    optional = [f'{line}; extra == "{extra}"' for extra, lines in extras.items() for line in lines]
    return [*project["dependencies"], *optional], tuple(extras)


def require_extra(extra: str, module: str, *, purpose: str) -> None:
    """Raises: EnvironmentProblem with the pip line when a package of ``extra`` is missing or of another version."""
    from importlib.util import find_spec

    fix = f'pip install "{DISTRIBUTION}[{extra}]"'
    if find_spec(module) is None:
        raise EnvironmentProblem(f"{purpose} needs {module}, which is not installed.", fix=f"Install it: {fix}")
    wrong = [status.words for status in requirements(extra) if not status.is_satisfied]
    if wrong:
        raise EnvironmentProblem(
            f"{purpose} needs {'; '.join(wrong)}.", why="Other versions are not supported.", fix=fix
        )
