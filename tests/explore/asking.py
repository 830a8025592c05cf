"""A request of the browser's side to an explorer, as its messages are declared."""

import inspect


def ask(widget, what, *values, **named):
    """Answer and buffers of a request, checked against the declaration of its message."""
    handler = type(widget).handlers[what]
    asks = handler.message.asks
    parameters = inspect.signature(handler).parameters
    defaults = {
        name: parameters[name].default
        for name in asks
        if name in parameters and parameters[name].default is not inspect.Parameter.empty
    }
    asked = defaults | dict(zip(asks, values, strict=False)) | named
    answer, buffers = handler(widget, **handler.message.arguments(asked)) or ({}, [])
    handler.message.check(answer)
    assert bool(handler.message.buffers) or not buffers
    return answer, buffers
