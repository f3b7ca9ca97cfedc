"""stub."""
def which(path: str) -> None:
    """Stub."""
