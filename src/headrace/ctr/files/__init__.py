"""How models lie on disk: arrays, versions, tables in fewer bits, ONNX."""
