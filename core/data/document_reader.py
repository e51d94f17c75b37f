"""Whole files as one document each: text, Markdown, PDF, DOCX. Called through core/data/readers.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from core.data import record
from core.data.record import Record
from planner.errors import EnvironmentProblem


def read_text(stream: BinaryIO) -> Iterator[Record]:
    """The whole file as one document, line ends as \\n."""
    raw = stream.read(record.MAX_RECORD_BYTES + 1)
    if len(raw) > record.MAX_RECORD_BYTES:
        yield Record(line=1, kind="bad", problem=f"one document of more than {record.MAX_RECORD_BYTES >> 20} MiB")
        return
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        yield Record(line=line, kind="bad", problem=f"not valid UTF-8 at byte {error.start} of the file")
        return
    if text.strip():
        yield Record(line=1, value={"text": text})


def read_pdf(stream: BinaryIO) -> Iterator[Record]:
    """The text of all pages, a blank line between pages.

    Raises: EnvironmentProblem without pypdf.
    """
    try:
        from pypdf import PdfReader
    except ImportError:
        raise _needs("PDF", "pypdf") from None
    try:
        reader = PdfReader(stream)
        if reader.is_encrypted and not reader.decrypt(""):
            yield Record(line=1, kind="bad", problem="the PDF is encrypted")
            return
        pages = [page.extract_text().strip() for page in reader.pages]
    except Exception as error:  # a damaged PDF can fail anywhere inside the parser
        yield Record(line=1, kind="bad", problem=f"not a readable PDF ({_first_line(error)})")
        return
    if any(pages):
        yield Record(line=1, value={"text": "\n\n".join(page for page in pages if page)})
    else:
        yield Record(line=1, kind="bad", problem=f"no text in its {len(pages)} pages (scanned?)")


def read_docx(stream: BinaryIO) -> Iterator[Record]:
    """Paragraphs and tables in order; headings get the # of Markdown, the cells of a row a tab between them.

    Raises: EnvironmentProblem without python-docx.
    """
    try:
        from docx import Document
        from docx.table import Table
    except ImportError:
        raise _needs("DOCX", "python-docx") from None
    lines: list[str] = []
    try:
        for block in Document(stream).iter_inner_content():
            if isinstance(block, Table):
                lines += ["\t".join(cell.text for cell in row.cells) for row in block.rows]
            else:
                style = block.style.name if block.style is not None else ""
                level = style.removeprefix("Heading ") if style else ""
                lines.append(f"{'#' * int(level)} {block.text}" if level.isdigit() else block.text)
    except Exception as error:  # a damaged archive or XML can fail anywhere inside the parser
        yield Record(line=1, kind="bad", problem=f"not a readable DOCX ({_first_line(error)})")
        return
    text = "\n".join(lines).strip()
    if text:
        yield Record(line=1, value={"text": text})


def _needs(kind: str, package: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"A {kind} file cannot be read.", why=f"It needs {package}.", fix="pip install 'longfit[docs]'"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
