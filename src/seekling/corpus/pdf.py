"""PDF to plain markdown by pypdf: the text of each page under a heading that says which page it is."""

from __future__ import annotations

import io
import logging
import re

from seekling.errors import DataError, MissingExtraError

_HYPHENATED = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_])")


def pdf_to_markdown(data: bytes, where: str) -> tuple[str, str]:
    """Convert a whole file to (title, markdown); both may be empty: pages without text, such as scans, are left out.

    Raises:
        DataError: the file, called `where`, is damaged or needs a password.
        MissingExtraError: pypdf is not installed.
    """
    try:
        import pypdf
    except ImportError:
        raise MissingExtraError("reading PDF needs pypdf: pip install 'seekling[ingest]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # of what is wrong with a file, our error tells all there is
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        title = str(reader.metadata.title or "") if reader.metadata else ""
        pages = [page.extract_text() for page in reader.pages]
    except (
        pypdf.errors.PyPdfError, pypdf.errors.DependencyError, NotImplementedError,
        ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OSError,
    ) as error:  # fmt: skip
        raise DataError(
            f"{where} is a PDF that cannot be read: {error or type(error).__name__}; expected an undamaged file "
            "without a password; save it again or remove it"
        ) from None
    texts = [_HYPHENATED.sub("", _clean(page)) for page in pages]
    parts = [f"## Page {number}\n\n{text}" for number, text in enumerate(texts, start=1) if text]
    return " ".join(_clean(title).split()), "\n\n".join(parts)


def _clean(text: str) -> str:
    """Fonts without a table of characters leave NULs and halves of surrogate pairs behind; a '#' is no heading."""
    text = text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")
    return re.sub(r"^(?=#)", r"\\", text.strip(), flags=re.MULTILINE)
