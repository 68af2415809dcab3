"""Errors about files that should be records."""


class RecordError(ValueError):
    """Error for a file that is not a record, is incomplete, or was changed after it was written."""

    kind = "damaged"
    """Kind of the finding in ``attn-zoo records verify``: ``damaged``, ``edited`` or ``no record``."""


class EditedError(RecordError):
    """Error for a record that contradicts itself or its digest, because it was changed after it was written."""

    kind = "edited"


class ForeignError(RecordError):
    """Error for a JSON file of another kind, such as the output of ``attn-zoo measure``."""

    kind = "no record"
