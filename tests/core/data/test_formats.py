"""Parquet, PDF, DOCX and the hubs: text as it stands, damage as a reason, a missing package with the line to type."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from core.data.hub import HubSet, hub_set
from core.data.readers import read_file
from core.data.sources import open_source
from planner.errors import ConfigError, EnvironmentProblem


def values(path: Path) -> list[Any]:
    return [record.value for record in read_file(path) if record.kind == "row"]


def problems(path: Path) -> list[str]:
    return [record.problem for record in read_file(path) if record.kind == "bad"]


def test_parquet_rows_without_the_keys_of_other_rows(tmp_path: Path) -> None:
    """Bug case B04j, the table: Arrow unifies structs, so each call would get the arguments of all."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {"instruction": "a", "input": None, "output": "b", "calls": [{"arguments": {"x": 0, "y": 1}}]},
        {"instruction": "c", "input": "d", "output": "第", "calls": [{"arguments": {"text": "hi"}}]},
    ]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert values(path) == rows
    path.write_bytes(path.read_bytes()[:200])
    (problem,) = problems(path)
    assert problem.startswith("not valid Parquet")


def minimal_pdf(*pages: str) -> bytes:
    """A PDF of Helvetica lines, written by hand: header, objects, cross references, trailer."""
    kids = " ".join(f"{3 + 2 * at} 0 R" for at in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    for at, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources {font} /Contents {4 + 2 * at} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return body + f"{trailer}startxref\n{len(body)}\n%%EOF\n".encode()


def test_pdf_pages_become_one_document(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(minimal_pdf("First page.", "Second page."))
    assert values(path) == [{"text": "First page.\n\nSecond page."}]
    path.write_bytes(minimal_pdf("", ""))
    assert problems(path) == ["no text in its 2 pages (scanned?)"]
    path.write_bytes(b"%PDF-1.4 nonsense")
    assert problems(path)[0].startswith("not a readable PDF")


def test_docx_headings_paragraphs_and_tables_in_order(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Report", level=1)
    document.add_paragraph("第一行 and more")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.add_paragraph("after the table")
    path = tmp_path / "a.docx"
    document.save(path)
    assert values(path) == [{"text": "# Report\n第一行 and more\na\tb\nafter the table"}]
    path.write_bytes(b"PK not a zip")
    assert problems(path)[0].startswith("not a readable DOCX")


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.pdf", "pypdf"), ("a.docx", "python-docx")])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    real = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.split(".")[0] in ("pyarrow", "pypdf", "docx"):
            raise ImportError(module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(EnvironmentProblem, match=f"It needs {package}"):
        list(read_file(tmp_path / name))


def test_hub_specs() -> None:
    assert hub_set("hf::org/name") == HubSet(hub="hf", id="org/name")
    assert hub_set("ms::org/name:sub@v1.2[test]") == HubSet(
        hub="ms", id="org/name", subset="sub", revision="v1.2", split="test"
    )
    assert hub_set("AI-ModelScope/alpaca-gpt4-data-zh") == HubSet(hub="ms", id="AI-ModelScope/alpaca-gpt4-data-zh")
    assert hub_set("folder/file") is None
    assert hub_set("hf::../../etc") is None
    assert open_source("hf::org/name#500").amount == 500
    whole = open_source("hf::org/name:sub@v1[test]#5")  # brackets are a split here, not a glob
    assert (whole.parts[0].name, whole.amount) == ("hf::org/name:sub@v1[test]", 5)
    with pytest.raises(ConfigError, match="hf::org/name"):
        open_source("org/name")


def test_hub_rows_are_streamed_and_the_commit_is_their_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load_dataset(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        calls.append((args, kwargs))
        return [{"messages": [{"role": "user", "content": "q", "tool_calls": None}]}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(sha="c0ffee"))
    part = open_source("hf::org/name:sub@main").parts[0]
    assert [record.value for record in part.read(None)] == [{"messages": [{"role": "user", "content": "q"}]}]
    assert calls == [(("org/name", "sub"), {"split": "train", "revision": "main", "streaming": True})]
    seen: list[bytes] = []
    part.identity(seen.append)
    assert seen == [b"c0ffee"]


def test_without_a_commit_every_row_is_the_identity_and_errors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [[{"text": "a"}, {"text": "b"}], ConnectionError("no route to host\nmore")]

    def load(name: str, **_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = ModuleType("modelscope.msdatasets")
    module.MsDataset = SimpleNamespace(load=load)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modelscope", ModuleType("modelscope"))
    monkeypatch.setitem(sys.modules, "modelscope.msdatasets", module)
    part = open_source("ms::org/name").parts[0]
    seen: list[bytes] = []
    part.identity(seen.append)
    assert seen == [b'{"text": "a"}', b'{"text": "b"}']
    with pytest.raises(ConfigError, match=r"could not be read from the hub\. no route to host"):
        list(part.read(None))


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentProblem, match="It needs datasets"):
        list(open_source("hf::org/name").parts[0].read(None))
