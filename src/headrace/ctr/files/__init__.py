"""Files of click models: arrays, versions, quantized tables, ONNX."""
