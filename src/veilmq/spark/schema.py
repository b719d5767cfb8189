"""The columns of the source: what Spark is told and what the server's Arrow batches have are the same.

``attribute_types`` is null unless an attribute is not of type String; values of binary attributes are base64 text.
"""

SCHEMA = (
    "id string, body string, attributes map<string, string>, attribute_types map<string, string>, group string, "
    "sent_at timestamp, received_at timestamp, receive_count int, sequence_number string, queue string"
)

COLUMNS = [column.split()[0] for column in SCHEMA.replace("map<string, string>", "map").split(", ")]
