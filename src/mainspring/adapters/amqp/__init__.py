"""A client of AMQP 0-9-1 as RabbitMQ speaks it: as much of it as Mainspring uses, in batches.

``wire`` cuts and makes frames, ``connection`` and ``channel`` hold a conversation, ``publisher`` waits for
confirms, and ``client`` finds a node that answers.
"""
