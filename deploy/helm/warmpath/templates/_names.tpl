{{- define "warmpath.name" -}}
{{- /* A Service's name begins with a letter and has no dot; a release's may have both. */ -}}
{{- $name := .Values.nameOverride | default (.Release.Name | replace "." "-") }}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "warmpath-%s" $name }}{{ end }}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "warmpath.selector" -}}
app.kubernetes.io/name: warmpath
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: router
{{- end }}

{{- define "warmpath.labels" -}}
{{ include "warmpath.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warmpath.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "warmpath.name" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- /* Constraints, each with a selector of the pods that it spreads. */ -}}
{{- define "warmpath.spread" -}}
{{- $selector := dict "matchLabels" (index . 1 | fromYaml) }}
{{- range index . 0 }}
- {{ merge (dict) . (dict "labelSelector" $selector) | toYaml | nindent 2 | trim }}
{{- end }}
{{- end }}

{{- /* The port of a URL. */ -}}
{{- define "warmpath.port" -}}
{{- $port := (urlParse .).host | regexFind ":[0-9]+$" | trimPrefix ":" -}}
{{- $port | default (ternary "443" "80" (hasPrefix "https:" .)) -}}
{{- end }}

{{- define "warmpath.toml" -}}
{{- /* The values' part comes first, since keys outside all tables, such as pods-file, can stand only there. */ -}}
{{ tpl .Values.config . | trimSuffix "\n" }}

[server]
listen = "0.0.0.0:7400"
metrics-listen = "0.0.0.0:7401"
drain-delay-seconds = {{ .Values.drainDelaySeconds }}
drain-seconds = {{ .Values.drainSeconds }}
insecure = {{ not (and .Values.tls.secretName .Values.clients) }}
{{- with .Values.tls }}
{{- if .secretName }}

[server.tls]
cert = "../tls/tls.crt"
key = "../tls/tls.key"
{{- if .clientCertificates }}
client-ca = "../tls/ca.crt"
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.clients }}

[[clients]]
name = {{ .name | quote }}
roles = [{{ range $at, $role := .roles }}{{ if $at }}, {{ end }}{{ $role | quote }}{{ end }}]
{{- if .certificate }}
certificate = {{ .certificate | quote }}
{{- else }}
token-file = {{ printf "../tokens/%s" .name | quote }}
{{- end }}
{{- end }}
{{- end }}
