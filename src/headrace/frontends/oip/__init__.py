"""The Open Inference Protocol (V2) over REST and gRPC, with the Triton extensions that clients use."""
