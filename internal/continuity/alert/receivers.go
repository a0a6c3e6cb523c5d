package alert

import "net/url"

// Receivers are the settings of where alerts go; any may be empty.
type Receivers struct {
	TelegramToken string
	TelegramChat  string
	TelegramAPI   string
	SMTPURL       string
	AlertFrom     string
	AlertTo       string
}

// Check tells want of every option whether it is usable.
func (r Receivers) Check(want func(met bool, option, format string, args ...any)) {
	want((r.TelegramToken == "") == (r.TelegramChat == ""), "TelegramChat", "want the bot's token and the chat, or neither")
	if r.TelegramAPI != "" {
		u, err := url.Parse(r.TelegramAPI)
		want(err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname())),
			"TelegramAPI", "want https://host: the bot's token is sent there")
	}
	if r.SMTPURL != "" {
		_, err := NewSMTP(r.smtp())
		want(err == nil, "SMTPURL", "%v", err)
	}
}

// Senders are those that there are settings for.
func (r Receivers) Senders() ([]Sender, error) {
	var senders []Sender
	if r.TelegramToken != "" {
		senders = append(senders, NewTelegram(TelegramOptions{Token: r.TelegramToken, Chat: r.TelegramChat, API: r.TelegramAPI}))
	}
	if r.SMTPURL != "" {
		mail, err := NewSMTP(r.smtp())
		if err != nil {
			return nil, err
		}
		senders = append(senders, mail)
	}
	return senders, nil
}

func (r Receivers) smtp() SMTPOptions {
	return SMTPOptions{URL: r.SMTPURL, From: r.AlertFrom, To: r.AlertTo}
}
