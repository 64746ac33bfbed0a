"""The OpenAPI document and the HTML page rendered from it."""
