"""A local HTTP server that speaks OpenAI's API: apps that know that one need not know ours.

Only this package imports Starlette and uvicorn, which the `endpoint` extra brings.
"""
