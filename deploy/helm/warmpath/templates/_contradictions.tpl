{{- /* Values that contradict each other, or the chart's own parts: the schema cannot compare them. */ -}}
{{- define "warmpath.contradictions" -}}
{{- $names := list }}
{{- range $at, $client := .Values.clients }}
{{- if has $client.name $names }}
{{- fail (printf "clients[%d].name: another client has the name %s" $at $client.name) }}
{{- end }}
{{- $names = append $names $client.name }}
{{- if and $client.certificate (not $.Values.tls.clientCertificates) }}
{{- fail (printf "clients[%d].certificate: needs tls.clientCertificates=true, by which certificates are asked for" $at) }}
{{- end }}
{{- end }}
{{- if not (or .Values.tls.secretName .Values.tls.plainTextTokens) }}
{{- $problem := "needs tls.secretName: without TLS the token is sent in plain text, which only tls.plainTextTokens=true allows" }}
{{- range $at, $client := .Values.clients }}
{{- if $client.tokenSecret }}{{ fail (printf "clients[%d].tokenSecret: %s" $at $problem) }}{{ end }}
{{- end }}
{{- with .Values.monitoring.serviceMonitor }}
{{- if and .enabled .tokenSecret }}{{ fail (printf "monitoring.serviceMonitor.tokenSecret: %s" $problem) }}{{ end }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.serviceMonitor }}
{{- if and .enabled $.Values.clients (not .tokenSecret) }}
{{- fail "monitoring.serviceMonitor.tokenSecret: is empty, and with `clients` only a token of the role `read` opens /metrics" }}
{{- end }}
{{- end }}
{{- with .Values.gateway }}
{{- if and .enabled (ne (empty .tlsSecretName) (empty $.Values.tls.secretName)) }}
{{- fail "gateway.tlsSecretName: goes with tls.secretName; it has the gateway's own tls.crt and tls.key, and the routers' ca.crt" }}
{{- end }}
{{- if and .enabled $.Values.clients (not $.Values.tls.clientCertificates) }}
{{- fail "gateway.enabled: with `clients` needs tls.clientCertificates=true, since Envoy shows a certificate and no token" }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "autoscaling.minReplicas: %d is more than autoscaling.maxReplicas, %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- $named := list }}
{{- range regexFindAll "(?m)^[^#\\n]*inference-pool\\s*=\\s*[\"'][^\"'\\n]*" (tpl .Values.config .) -1 }}
{{- $named = append $named (regexReplaceAll "^.*[\"']" . "") }}
{{- end }}
{{- with .Values.inferencePool }}
{{- range $named }}
{{- if ne . $.Values.inferencePool.name }}
{{- fail (printf "config: a pod set has inference-pool = %q, but inferencePool.name is %q" . $.Values.inferencePool.name) }}
{{- end }}
{{- end }}
{{- if and .name (not $named) }}
{{- fail (printf "inferencePool.name: no pod set of `config` has inference-pool = %q" .name) }}
{{- end }}
{{- if and .create (not .name) }}{{ fail "inferencePool.name: is empty, and inferencePool.create needs one" }}{{ end }}
{{- end }}
{{- $labels := fromYaml (include "warmpath.labels" .) }}
{{- range $key, $taken := dict
    "podLabels" (list .Values.podLabels (fromYaml (include "warmpath.selector" .)))
    "podAnnotations" (list .Values.podAnnotations (dict "checksum/config" ""))
    "monitoring.labels" (list .Values.monitoring.labels $labels)
    "monitoring.dashboard.labels" (list .Values.monitoring.dashboard.labels $labels) }}
{{- range $name, $_ := last $taken }}
{{- if hasKey (first $taken | default dict) $name }}
{{- fail (printf "%s: the chart gives %s itself" $key $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $at, $volume := .Values.volumes }}
{{- if has $volume.name (list "config" "tmp" "tls" "tokens" "secrets") }}
{{- fail (printf "volumes[%d].name: %s is a volume of the chart itself" $at $volume.name) }}
{{- end }}
{{- end }}
{{- range $at, $port := .Values.service.extraPorts }}
{{- if or (has $port.name (list "grpc" "http")) (has (int $port.port) (list 7400 7401)) }}
{{- fail (printf "service.extraPorts[%d]: grpc at 7400 and http at 7401 are ports of the chart itself" $at) }}
{{- end }}
{{- end }}
{{- end }}
