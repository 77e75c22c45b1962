"""Live evaluation: how good the answers were that users really got, minute by minute."""
