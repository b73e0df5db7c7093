"""The pages of docs/reference, made from the code. Each module has a `page` that returns one page's Markdown."""
