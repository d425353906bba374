"""The wire contract's generated code. Only the codec, the transport and the service import it."""
