"""Output folders of other trainers as metric rows."""

import json

import pytest

from app.services.foreign_runs import open_foreign
from planner.errors import ConfigError, RunNotFound


def write_rows(path, *rows):
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_llamafactory_is_followed_as_it_writes(tmp_path):
    first = {"current_steps": 5, "total_steps": 20, "loss": 2.5, "lr": 1e-4, "epoch": 0.5, "elapsed_time": "0:00:10",
             "remaining_time": "0:00:30", "throughput": 812.5, "total_tokens": 8000}  # fmt: skip
    write_rows(tmp_path / "trainer_log.jsonl", first)
    run = open_foreign(tmp_path)
    (row,) = run.read()
    assert row == {"step": 5, "loss": 2.5, "learning_rate": 1e-4, "epoch": 0.5, "tokens_per_second": 812.5,
                   "tokens": 8000, "seconds": 10.0}  # fmt: skip
    write_rows(
        tmp_path / "trainer_log.jsonl",
        {"current_steps": 5, "total_steps": 20, "eval_loss": 2.4, "elapsed_time": "0:00:12"},
        {"current_steps": 10, "total_steps": 20, "loss": 2.0, "elapsed_time": "1 day, 0:00:20", "total_tokens": 16000},
        {"current_steps": 20, "total_steps": 20, "elapsed_time": "0:01:00"},
    )
    evaluation, second = run.read()
    assert (evaluation["step"], evaluation["eval_loss"]) == (5, 2.4)
    assert (second["tokens"], second["seconds"]) == (8000, 86410.0)
    assert (run.trainer, run.step, run.total_steps) == ("LLaMA-Factory", 10, 20)
    assert run.read() == []


def test_swift_with_its_words_for_steps_and_time(tmp_path):
    (tmp_path / "run.log").write_text("hello\n")
    write_rows(
        tmp_path / "logging.jsonl",
        {"loss": 1.5, "grad_norm": 0.7, "learning_rate": 1e-5, "memory(GiB)": 20.1, "train_speed(s/it)": 2.0,
         "epoch": 0.1, "global_step/max_steps": "3/300", "elapsed_time": "1m 6s", "remaining_time": "1h 2m"},
        {"eval_loss": 1.4, "global_step/max_steps": "3/300"},
        {"train_runtime": 12.0},
    )  # fmt: skip
    run = open_foreign(tmp_path)
    first, second = run.read()
    assert (first["step"], first["loss"], first["grad_norm"], first["seconds"]) == (3, 1.5, 0.7, 66.0)
    assert second == {"step": 3, "eval_loss": 1.4}
    assert (run.total_steps, run.log) == (300, tmp_path / "run.log")


def test_a_trainer_state_is_told_on_from_where_the_one_before_ended(tmp_path):
    def save(step, *history):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"max_steps": 40, "log_history": history}))

    rows = [{"step": step, "loss": 3.0 - step / 10, "learning_rate": 1e-4} for step in (5, 10, 15)]
    save(10, *rows[:2])
    run = open_foreign(tmp_path)
    assert [row["step"] for row in run.read()] == [5, 10]
    assert run.read() == []
    save(20, *rows, {"step": 15, "eval_loss": 1.4}, {"step": 15, "train_runtime": 3.0})
    assert [row.get("loss", row.get("eval_loss")) for row in run.read()] == [1.5, 1.4]
    assert (run.trainer, run.total_steps) == ("Hugging Face Trainer", 40)


def test_lines_that_make_no_sense_are_left_out_and_a_folder_without_a_log_is_refused(tmp_path):
    with pytest.raises(RunNotFound, match=r"trainer_state\.json"):
        open_foreign(tmp_path)
    (tmp_path / "trainer_state.json").write_text("[]")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_foreign(tmp_path)
    write_rows(tmp_path / "logging.jsonl", {"global_step/max_steps": "x/y", "loss": 1}, {"loss": 2}, ["no"])
    assert open_foreign(tmp_path).read() == []
