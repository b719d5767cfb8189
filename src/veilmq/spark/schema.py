"""The columns of the source, which equal those of the server's Arrow batches.

``attribute_types`` is null unless an attribute has another type than String; values of binary attributes are Base64.
"""

SCHEMA = (
    "id string, body string, attributes map<string, string>, attribute_types map<string, string>, group string, "
    "sent_at timestamp, received_at timestamp, receive_count int, sequence_number string, queue string"
)

COLUMNS = [column.split()[0] for column in SCHEMA.replace("map<string, string>", "map").split(", ")]
