"""Operations on jobs and runs that several features share."""
