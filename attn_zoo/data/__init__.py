"""Data sets: where their files are, readers of file formats, and a cache of processed arrays."""

from attn_zoo.data.cache import cached
from attn_zoo.data.files import open_text, read_bytes, reading, sha256
from attn_zoo.data.jsonl import read_jsonl
from attn_zoo.data.root import data_root

__all__ = ["cached", "data_root", "open_text", "read_bytes", "read_jsonl", "reading", "sha256"]
