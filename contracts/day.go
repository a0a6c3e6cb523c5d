package contracts

// ValidDay reports whether day is a real civil date as YYYYMMDD, from 00010101
// to 99991231 in the Gregorian calendar. Only ASCII digits count.
func ValidDay(day string) bool {
	if len(day) != 8 {
		return false
	}
	for i := range len(day) {
		if day[i] < '0' || day[i] > '9' {
			return false
		}
	}
	year, month, dayOfMonth := digits(day[:4]), digits(day[4:6]), digits(day[6:])
	return year >= 1 && month >= 1 && month <= 12 &&
		dayOfMonth >= 1 && dayOfMonth <= daysIn(year, month)
}

// digits reads a short run of ASCII digits, which the caller has checked.
func digits(s string) int {
	n := 0
	for i := range len(s) {
		n = n*10 + int(s[i]-'0')
	}
	return n
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}
