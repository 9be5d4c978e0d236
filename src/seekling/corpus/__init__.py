"""Pages and questions in: readers, question files, sections, passages, content hashes, and the almanac generator."""
