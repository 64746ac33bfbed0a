"""Settings → adapters → services. The only package that knows concrete adapters."""
