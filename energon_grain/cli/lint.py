"""stub."""
def lint(path: str) -> None:
    """Stub."""
