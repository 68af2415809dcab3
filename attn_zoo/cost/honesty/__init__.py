"""Whether the timings of this machine can be believed: the same twice, and a tenth more, again and again on the real clock."""
