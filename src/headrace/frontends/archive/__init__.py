"""The archive's codecs: vectors by key over REST (``/v1/archive``) and gRPC (``headrace.archive.v1``)."""
