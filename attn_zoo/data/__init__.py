"""Data sets: where their files are, readers of file formats, and a cache of processed arrays."""

from attn_zoo.data.cache import cached
from attn_zoo.data.files import data_root, dataset_digests, folder_digest, open_text, read_bytes, read_jsonl, reading, sha256

__all__ = [
    "cached",
    "data_root",
    "dataset_digests",
    "folder_digest",
    "open_text",
    "read_bytes",
    "read_jsonl",
    "reading",
    "sha256",
]
