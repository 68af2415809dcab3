"""Error classes of records."""


class RecordError(ValueError):
    """Invalid record: the file is not a record, is incomplete, or was changed after it was written."""

    kind = "damaged"
    """Kind of the finding in ``attn-zoo records verify``: ``damaged``, ``edited`` or ``no record``."""


class EditedError(RecordError):
    """Record that contradicts itself or its digest: changed after it was written."""

    kind = "edited"


class ForeignError(RecordError):
    """JSON of another kind, such as the output of ``attn-zoo measure``."""

    kind = "no record"
