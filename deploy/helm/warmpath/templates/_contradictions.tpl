{{- /* Values that contradict each other, or the chart's own parts: the schema cannot compare them. */ -}}
{{- define "warmpath.contradictions" -}}
{{- range $at, $volume := .Values.volumes }}
{{- if has $volume.name (list "config" "tmp" "tls" "tokens" "secrets") }}
{{- fail (printf "volumes[%d].name: %s is a volume of the chart itself" $at $volume.name) }}
{{- end }}
{{- end }}
{{- end }}
