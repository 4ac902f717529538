-- Tell producers whether a wake-up hint is of use. Only a change is written.
UPDATE relay_wakeup SET sleeping = %(sleeping)s WHERE sleeping <> %(sleeping)s
