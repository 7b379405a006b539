"""Messages with a delivery time: which slot they wait in, how far delivery has come, and who delivers.

rules decide (no store, no clock); door parks what producers send; pending keeps wheel and timer log, which follow from
the message log; marks and repeats say what the message log itself knows of delivery; schedule delivers on a master.
"""
