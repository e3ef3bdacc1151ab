"""One page of evidence, made from the JSON of the runs."""
