-- Tell producers whether a wake-up hint is useful. Writes only when this changes.
UPDATE relay_wakeup SET sleeping = %(sleeping)s WHERE sleeping <> %(sleeping)s
