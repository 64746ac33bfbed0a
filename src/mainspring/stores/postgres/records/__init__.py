"""Everything stored on PostgreSQL beside the work itself: catalog, access, usage and other records."""
