"""Reads a pasted command line: which program, which flags with which values, which variables in front.

Called by paste.py. Nothing here knows what a flag means; see the dialects for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.services.importing.pasted import Pasted, Setting, flag_name
from app.services.importing.shell_words import Word, shell_words

SWIFT_VERBS = frozenset(
    {"sft", "pt", "rlhf", "infer", "export", "deploy", "eval", "sample", "rollout", "app", "web-ui", "merge-lora"}
)
_VERBS = {
    "swift": SWIFT_VERBS,
    "megatron": SWIFT_VERBS,
    "llamafactory-cli": frozenset({"train", "chat", "api", "export", "eval", "webchat", "webui"}),
    "axolotl": frozenset({"train", "preprocess", "inference", "merge-lora", "evaluate", "quantize"}),
    "trl": frozenset({"sft", "dpo", "grpo", "kto", "reward", "rloo", "chat"}),
    "longfit": frozenset({"sft"}),
}
_PROGRAMS = {"llamafactory-cli": "llamafactory"}
_TRAINING_VERBS = frozenset({"sft", "pt", "train", "script"})
_MODULES = {  # scripts and modules that are one of those programs
    re.compile(r"(?:^|/)swift/cli/(\w+)\.py$|^swift\.cli\.(\w+)$|(?:^|/)llm_(sft|pt|infer|export|rlhf)\.py$"): "swift",
    re.compile(r"^axolotl\.cli\.(\w+)$"): "axolotl",
    re.compile(r"(?:^|/)trl/scripts/(\w+)\.py$"): "trl",
}
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_PROCESS_VARIABLES = {"NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"}  # they count even when a value repeats them
_FLAG = re.compile(r"^-{1,2}[A-Za-z_][\w.\-]*(?:=.*)?$", re.DOTALL)
_TYPOGRAPHIC_DASHES = re.compile(r"^(?:[‐‑‒–—―−]+|-)(?=[A-Za-z_])")
_REDIRECTION = re.compile(r"^(?:\d|&)?>{1,2}(.*)$")
_CONFIG_FILE = re.compile(r"\.(?:ya?ml|json)$")


@dataclass(slots=True)
class _Command:
    words: list[str] = field(default_factory=list)
    quoted: list[bool] = field(default_factory=list)
    program: str = ""
    verb: str = ""
    start: int = 0  # of the words behind program and verb
    head: int = 0  # of the program itself

    @property
    def title(self) -> str:
        return f"{self.program} {self.verb}".strip()


def read_command(text: str) -> Pasted:
    """The first training command of the text; the first of a known program, when none trains. Never raises."""
    variables: dict[str, str] = {}
    exported: list[Setting] = []
    found: list[_Command] = []
    for words in _split(shell_words(text)):
        command = _command(words, variables)
        _find_program(command)
        if command.program or any(_is_flag(*pair) for pair in zip(command.words, command.quoted)):
            found.append(command)
        else:  # a line of its own: export NPROC_PER_NODE=2
            exported += _assignments(command.words)
            variables |= {name: value for word in command.words for name, value in _ASSIGNMENT.findall(word)}
    if not found:
        return Pasted(source="nothing", problem="It holds neither a command with flags nor a configuration.")
    named_in_values = {match[1] or match[2] for match in _VARIABLE.finditer(text)} - _PROCESS_VARIABLES
    exported = [setting for setting in exported if setting.name not in named_in_values]
    named = [command for command in found if command.program]
    chosen = next((c for c in named if c.verb in _TRAINING_VERBS), named[0] if named else found[0])
    return _pasted(chosen, exported, others=tuple(c.title for c in named if c is not chosen))


def read_arguments(arguments: Sequence[str], environment: Sequence[Setting] = ()) -> Pasted:
    """The flags of `longfit sft`, which a real shell has split already."""
    command = _Command(words=[_straight(word) for word in arguments], quoted=[False] * len(arguments), program="swift")
    command.verb = "sft"
    return _pasted(command, list(environment), others=())


def _split(words: Sequence[Word]) -> Iterator[list[Word]]:
    """One list a command. A new line goes on with the command before when it begins with a flag."""
    command: list[Word] = []
    for index, word in enumerate(words):
        if word.kind == "newline":
            following = next((w for w in words[index + 1 :] if w.kind != "newline"), None)
            if following is not None and following.kind == "word" and _is_flag(following.text, following.is_quoted):
                continue
        if word.kind != "word":
            if command:
                yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def _command(words: Sequence[Word], variables: dict[str, str]) -> _Command:
    known = dict(variables)
    command = _Command()
    for word in words:
        text = word.text if word.is_literal else _expand(word.text, known)
        if not word.is_quoted:
            text = _straight(text)
            known |= dict(_ASSIGNMENT.findall(text)) if not text.startswith("-") else {}
        command.words.append(text)
        command.quoted.append(word.is_quoted)
    return command


def _straight(word: str) -> str:
    """``—model`` and ``-model`` -> ``--model``; a dash before a digit is a minus sign."""
    if re.match(r"^-[A-Za-z]$", word):
        return word
    return _TYPOGRAPHIC_DASHES.sub("--", word)


def _expand(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[3] if match[3] is not None else match[0])

    return _VARIABLE.sub(value, text)


def _is_flag(word: str, is_quoted: bool) -> bool:
    return not is_quoted and bool(_FLAG.match(_straight(word)))


def _find_program(command: _Command) -> None:
    """Sets program, verb, head and start, when a word names one of the programs."""
    launcher = ""
    for index, raw in enumerate(command.words):
        word = raw.lstrip("!$(").strip()
        name = word.rsplit("/", 1)[-1].lower()
        following = command.words[index + 1].lower() if index + 1 < len(command.words) else ""
        if following in _VERBS.get(name, ()):
            command.program, command.verb = _PROGRAMS.get(name, name), following
            command.head, command.start = index, index + 2
            return
        for pattern, program in _MODULES.items():
            if match := pattern.search(word):
                command.program, command.verb = program, next(group for group in match.groups() if group)
                command.head, command.start = index, index + 1
                return
        if name in ("torchrun", "accelerate", "deepspeed") or re.fullmatch(r"python[\d.]*", name):
            launcher = name
        elif launcher and word.endswith(".py"):
            command.program, command.verb, command.head, command.start = "script", "script", index, index + 1
            return
    first = command.words[0].lower() if command.words else ""
    if first in ("sft", "pt") and len(command.words) > 1 and _is_flag(command.words[1], command.quoted[1]):
        command.program, command.verb, command.start = "swift", first, 1


def _pasted(command: _Command, exported: list[Setting], *, others: tuple[str, ...]) -> Pasted:
    if not command.program:
        command.start = next((i for i, pair in enumerate(zip(command.words, command.quoted)) if _is_flag(*pair)), 0)
        command.head = command.start
    front = [word.lstrip("!") for word in command.words[: command.head]]
    launching = [word for word in front if not _ASSIGNMENT.match(word) and word != "-m"]
    launcher, _, _ = _settings(launching, [False] * len(launching))
    settings, files, stray = _settings(command.words[command.start :], command.quoted[command.start :])
    return Pasted(
        source="command", program=command.program, verb=command.verb, settings=tuple(settings),
        launcher=tuple(launcher), environment=(*exported, *_assignments(front)),
        files=tuple(files), stray=tuple(stray), others=others,
    )  # fmt: skip


def _assignments(words: Sequence[str]) -> list[Setting]:
    return [
        Setting(name=match[1], value=match[2].strip(" ,;，；"), written=word)
        for word in words
        if (match := _ASSIGNMENT.match(word))
    ]


def _settings(words: Sequence[str], quoted: Sequence[bool]) -> tuple[list[Setting], list[str], list[str]]:
    """(flags with their values, configuration files, other words) behind a program."""
    settings: list[Setting] = []
    files: list[str] = []
    stray: list[str] = []
    index = 0
    while index < len(words):
        word, is_quoted = words[index], quoted[index]
        index += 1
        if redirection := None if is_quoted else _REDIRECTION.match(word):
            index += 0 if redirection[1] else 1
        elif _is_flag(word, is_quoted):
            flag, equals, attached = word.partition("=")
            values = [attached] if equals else []
            while index < len(words) and not _is_flag(words[index], quoted[index]):
                if not quoted[index] and _REDIRECTION.match(words[index]):
                    break
                if quoted[index] or _has_content(words[index]):
                    values.append(words[index] if quoted[index] else words[index].rstrip(",;，；。、"))
                index += 1
            settings.append(_setting(flag, values))
        elif _CONFIG_FILE.search(word) and not settings:
            files.append(word)
        elif match := _ASSIGNMENT.match(word):  # llamafactory-cli train x.yaml learning_rate=1e-5
            settings.append(Setting(name=flag_name(match[1]), value=match[2], written=word))
        elif _has_content(word):
            stray.append(word)
    return settings, files, stray


def _setting(flag: str, values: Sequence[str]) -> Setting:
    value: object = True if not values else values[0] if len(values) == 1 else tuple(values)
    shown = [f"'{text}'" if not text or re.search(r"[\s\"#]", text) else text for text in values]
    return Setting(name=flag_name(flag), value=value, written=" ".join((flag, *shown)))


def _has_content(word: str) -> bool:
    """Arrows, ticks and lone punctuation beside a value are dirt."""
    return any(char.isalnum() for char in word) or word in (".", "..", "/", "~") or word[:1] in ("{", "[")
