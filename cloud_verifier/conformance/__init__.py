"""`draftwire conformance`: a verifier that judges the client which talks to it."""
