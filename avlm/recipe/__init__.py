"""Recipe schema, loading, cross-field checks and explanation."""
