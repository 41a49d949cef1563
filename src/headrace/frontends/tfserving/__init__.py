"""TensorFlow Serving's API, over REST and gRPC."""
