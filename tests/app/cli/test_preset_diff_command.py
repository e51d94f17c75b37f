"""longfit preset diff, and that its answer is what leads from one preset to the other."""

import json

from app.cli.main import main


def test_diff_names_every_key_that_differs(capsys):
    assert main(["preset", "diff", "qwen2.5-7b-8k-1x24g", "qwen2.5-7b-16k-2x24g", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["key"]: (row["first"], row["second"]) for row in answer["differences"]}
    assert rows["max_length"] == ("8192", "16384")
    assert rows["hardware.count"][1] == "2"
    assert "model" not in rows


def test_a_preset_does_not_differ_from_itself(capsys):
    assert main(["preset", "diff", "demo-smollm2", "demo-smollm2"]) == 0
    assert "say the same" in capsys.readouterr().out


def test_an_unknown_preset_is_refused(capsys):
    assert main(["preset", "diff", "demo-smollm2", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
