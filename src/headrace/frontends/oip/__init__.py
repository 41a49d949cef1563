"""The Open Inference Protocol (V2) over REST and gRPC, with those of Triton's extensions that clients use."""
