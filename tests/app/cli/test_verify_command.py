"""`longfit verify` prints what was planned and what a dry run held, and ends with 1 when they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.cli import verify as verb
from app.cli.main import build_parser
from app.services.verify import compare

INSTANTS = ("load", "layer_backward")


@pytest.mark.parametrize(("excess", "code"), [(0, 0), (1024**3, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_text_json_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], excess: int, code: int, as_json: bool
) -> None:
    def fake(cases: Any) -> Any:
        for case in cases:
            planned = {
                found.instant: found.planned_bytes for found in compare(case, dict.fromkeys(INSTANTS, 1)).differences
            }
            yield compare(case, {instant: size + excess for instant, size in planned.items()})

    monkeypatch.setattr(verb, "verify", fake)
    argv = ["verify", "qwen2.5-7b-8k-1x24g", *(["--json"] if as_json else [])]
    assert verb.run(build_parser("verify").parse_args(argv)) == code
    out = capsys.readouterr().out
    if as_json:
        answer = json.loads(out)
        assert answer["ok"] is not bool(excess)
        (configuration,) = answer["configurations"]
        assert configuration["family"] == "qwen2"
        assert configuration["engine"] == "layer"
        assert [found["instant"] for found in configuration["instants"]] == list(INSTANTS)
        assert configuration["peak"]["is_off"] is bool(excess)
    else:
        assert "Qwen/Qwen2.5-7B-Instruct, 8,192 tokens, layer engine: qwen2.5-7b-8k-1x24g" in out
        assert "layer backward" in out
        assert ("a plan on these versions may be off" in out) == bool(excess)
        assert ("OFF" in out) == bool(excess)
