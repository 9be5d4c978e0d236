"""Where sentences of real pages end, and which section they stand in."""

from __future__ import annotations

from seekling.corpus.sentences import sentences
from seekling.types import Document

PAGE = """# Orla Mill

Orla Mill is a mill on the [Sorrel](sorrel). It was built by Dr. T. Wren in 1612, "for bread, not
beer." Its wheel (see fig. 2) turns still!

## History

- It burned down in 1740
- It was rebuilt by J. S. Ferris. He never saw it.

| Year | Owner |
| --- | --- |
| 1800 | Ann Lee |

### Heute

Am 3. Oktober 1990 wurde die Mühle verkauft. Sie steht z.B. im Tal. Er starb mit 73. Danach kam nichts.
"""


def test_sentences_end_where_a_reader_would_end_them():
    told = list(sentences(Document("m", "Orla Mill", PAGE)))
    # A sentence is where its offsets say.
    assert all(PAGE[each.start : each.end].split()[-1] in (each.text.split()[-1], "[Sorrel](sorrel).") for each in told)
    found = [(each.section, each.text) for each in told]
    assert found == [
        ("", "Orla Mill is a mill on the Sorrel."),
        ("", 'It was built by Dr. T. Wren in 1612, "for bread, not beer."'),
        ("", "Its wheel (see fig. 2) turns still!"),
        ("History", "- It burned down in 1740"),
        ("History", "- It was rebuilt by J. S. Ferris."),
        ("History", "He never saw it."),
        ("History", "| Year | Owner |"),
        ("History", "| --- | --- |"),
        ("History", "| 1800 | Ann Lee |"),
        ("Heute", "Am 3. Oktober 1990 wurde die Mühle verkauft."),
        ("Heute", "Sie steht z.B. im Tal."),
        ("Heute", "Er starb mit 73."),
        ("Heute", "Danach kam nichts."),
    ]
